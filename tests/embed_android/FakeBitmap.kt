package android.graphics

public class Bitmap(private val colors: IntArray, private val width: Int, private val height: Int) {
    public fun getWidth(): Int = width

    public fun getHeight(): Int = height

    public fun getPixels(pixels: IntArray, offset: Int, stride: Int, x: Int, y: Int, width: Int, height: Int) {
        for (row in 0 until height) {
            colors.copyInto(pixels, offset + row * stride, (y + row) * this.width + x, (y + row) * this.width + x + width)
        }
    }
}
